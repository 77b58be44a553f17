// A compiler that becomes the real one. It records its command line if it compiles or links. Variables let a compilation
// sleep or enter a control group, and any command run on another CPU, which it then reports for -march=native.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void append(const char *path, const char *text, size_t size) {
  int file = open(path, O_WRONLY | O_APPEND);
  if (file >= 0 && write(file, text, size) >= 0) close(file);
}

static int is_source(const char *word) {
  static const char *const suffixes[] = {".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp"};
  const char *suffix = strrchr(word, '.');
  for (size_t i = 0; suffix && i < sizeof suffixes / sizeof *suffixes; ++i)
    if (!strcmp(suffix, suffixes[i])) return 1;
  return 0;
}

int main(int count, char **words) {
  int is_compilation = 0, is_link = 0, is_question = 0;
  for (int i = 1; i < count; ++i) {
    is_compilation |= !strcmp(words[i], "-c") || is_source(words[i]);  // some compile and link in one command
    is_link |= !strcmp(words[i], "-shared");
    is_question |= !strcmp(words[i], "-E") || !strcmp(words[i], "--version");
  }
  is_compilation &= !is_question;
  char line[65536];
  size_t size = 0;
  for (int i = 0; i < count && size < sizeof line - 2; ++i)
    size += snprintf(line + size, sizeof line - size, "%s ", words[i]);
  if (size > sizeof line - 2) size = sizeof line - 2;
  line[size] = 0;
  line[size++] = '\n';
  if (is_compilation || is_link) append(LOG, line, size);
  if (is_compilation) {
    const char *sleep_s = getenv("TORTURE_COMPILER_SLEEP"), *group = getenv("TORTURE_COMPILER_GROUP");
    if (sleep_s) usleep((useconds_t)(atof(sleep_s) * 1e6));
    if (group) append(group, "0", 1);
  }
  // gcc finds its parts beside the name by which it was called. The flag stands last, so that @file and -D keep their order.
  char **all = calloc(count + 5, sizeof *all), **command = all + 3;
  memcpy(command, words, count * sizeof *all);
  command[0] = (char *)REAL;
  if (is_compilation) command[count] = (char *)FLAG;
  char *cpu = *EMULATOR ? getenv("TORTURE_COMPILER_CPU") : NULL;
  if (cpu) {
    command = all;
    command[0] = (char *)EMULATOR, command[1] = (char *)"-cpu", command[2] = cpu;
  }
  execvp(command[0], command);
  perror(command[0]);
  return 127;
}
