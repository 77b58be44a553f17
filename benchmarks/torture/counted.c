// A compiler that records its command line and becomes the real one. Variables let it sleep, enter a control group, or run
// on another CPU, which it then reports for -march=native.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void append(const char *path, const char *text, size_t size) {
  int file = open(path, O_WRONLY | O_APPEND);
  if (file >= 0 && write(file, text, size) >= 0) close(file);
}

int main(int count, char **words) {
  char line[65536];
  size_t size = 0;
  for (int i = 0; i < count && size < sizeof line - 2; ++i)
    size += snprintf(line + size, sizeof line - size, "%s ", words[i]);
  if (size > sizeof line - 2) size = sizeof line - 2;
  line[size] = 0;
  int is_compilation = strstr(line, " -c ") != NULL;
  line[size++] = '\n';
  append(LOG, line, size);
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
