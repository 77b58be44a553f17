// Notes which programs start, for `accel-ops run --compiles`. The variable LD_PRELOAD loads it into every process that is
// linked dynamically, however the process was started, and changes no arguments. It writes to stderr
// only in mode raise, where a refused compiler prints a line and ends.
//
// ACCEL_COMPILES is "MODE:FILE". Each record is one write() in append mode, so that records of processes do not mix:
// 0x1e, fields that end with 0x1f, 0x1e. `op_builder.system.ledger` reads them.
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char compilers[] = COMPILERS;  // ":gcc:g++:"; op_builder.compiles.compilers has the words and explains them
static const char not_compiling[] = NOT_COMPILING;
static const char questions[] = QUESTIONS;
static const char before_argument[] = BEFORE_ARGUMENT;
static const char subcommands[] = SUBCOMMANDS;

static pid_t compiler;  // this process, if it is a compiler that runs
static long long cpu_before;

// Whole microseconds: a program's locale may write fractions in another way.
static long long microseconds_of(struct timeval time) { return time.tv_sec * 1000000LL + time.tv_usec; }

// Of this process and of the children that have ended: a driver's work is done by its children. exec() keeps the counts.
static long long cpu_time(void) {
  struct rusage own = {0}, children = {0};
  getrusage(RUSAGE_SELF, &own);
  getrusage(RUSAGE_CHILDREN, &children);
  return microseconds_of(own.ru_utime) + microseconds_of(own.ru_stime) + microseconds_of(children.ru_utime) +
         microseconds_of(children.ru_stime);
}

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);  // as Python's time.monotonic(): the same for all processes
  return time.tv_sec * 1000000LL + time.tv_nsec / 1000;
}

static int is_listed(const char* list, const char* word, size_t length) {
  for (const char* at = list; (at = strchr(at, ':')) != NULL; ++at) {
    if (strncmp(at + 1, word, length) == 0 && at[1 + length] == ':') return 1;
  }
  return 0;
}

// Whether a file's name is that of a compiler, as x86_64-linux-gnu-g++-12: without target and version.
static int is_compiler(const char* path) {
  const char* name = strrchr(path, '/');
  name = name != NULL ? name + 1 : path;
  const char* end = name + strlen(name);
  for (const char* word; (word = memrchr(name, '-', (size_t)(end - name))) != NULL && isdigit(word[1]);) end = word;
  for (const char* word = name; word < end; ++word) {
    if ((word == name || word[-1] == '-') && is_listed(compilers, word, (size_t)(end - word))) return 1;
  }
  return 0;
}

static int is_question(const char* word) {
  size_t length = strlen(word);
  if (is_listed(not_compiling, word, length)) return 1;
  while (length > 0 && !is_listed(questions, word, length)) --length;
  return length > 0;
}

// As compiles() in op_builder.compiles.compilers.
static int compiles(int argc, char** argv) {
  int names_file = 0, is_argument = 0;
  for (int i = 1; i < argc; ++i) {
    size_t length = strlen(argv[i]);
    if (is_argument || (i == 1 && is_listed(subcommands, argv[i], length))) {
      is_argument = 0;
      continue;
    }
    if (is_question(argv[i])) return 0;
    is_argument = is_listed(before_argument, argv[i], length);
    names_file |= argv[i][0] != '-' || length == 1;
  }
  return names_file;
}

static const char* ledger_file(void) {
  const char* value = getenv("ACCEL_COMPILES");
  const char* colon = value != NULL ? strchr(value, ':') : NULL;
  return colon != NULL ? colon + 1 : NULL;
}

// Appends a record; 0 if there is no ledger (any more).
static int append(char* text, size_t size) {
  const char* path = ledger_file();
  int file = path != NULL ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  ssize_t written = write(file, text, size);
  close(file);
  return written == (ssize_t)size;
}

static char* add_word(char* end, const char* word, size_t most) {
  for (; *word != '\0' && most > 0; ++word, --most) *end++ = *word == '\x1e' || *word == '\x1f' ? '?' : *word;
  *end++ = '\x1f';
  return end;
}

__attribute__((constructor)) static void note_start(int argc, char** argv) {
  if (ledger_file() == NULL || argv == NULL) return;
  int saved_errno = errno;
  char exe[4096];
  ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
  exe[length > 0 ? length : 0] = '\0';
  int is_refused = 0;
  if (is_compiler(exe)) {
    compiler = getpid();
    cpu_before = cpu_time();
    is_refused = strncmp(getenv("ACCEL_COMPILES"), "raise:", 6) == 0 && compiles(argc, argv);
  }
  size_t size = sizeof exe + 128;
  for (int i = 0; i < argc; ++i) size += strlen(argv[i]) + 1;
  char* text = malloc(size);
  if (text != NULL) {
    char* end = text + sprintf(text, "\x1e%s\x1f%lld\x1f%d\x1f%d\x1f", is_refused ? "refused" : "start", now(), (int)getpid(),
                               (int)getppid());
    end = add_word(end, exe, sizeof exe);
    for (int i = 0; i < argc; ++i) {
      // As shortened() in op_builder.system.ledger.
      if (compiler != 0 || i == 0 || i >= argc - MOST_LAST_WORDS) {
        end = add_word(end, argv[i], compiler != 0 ? (size_t)-1 : MOST_BYTES);
      }
    }
    *end++ = '\x1e';
    is_refused &= append(text, (size_t)(end - text));
    free(text);
  }
  if (is_refused) {
    dprintf(STDERR_FILENO, "accel-ops: error: no compiler may start here (mode raise): %s\n", exe);
    syscall(SYS_exit_group, 1);
  }
  errno = saved_errno;
}

__attribute__((destructor)) static void note_end(void) {
  if (compiler == 0 || compiler != getpid()) return;  // a child that was forked has its parent's variables
  char text[128];
  int size = snprintf(text, sizeof text, "\x1e" "end\x1f%lld\x1f%d\x1f%lld\x1f\x1e", now(), (int)compiler,
                      cpu_time() - cpu_before);
  compiler = 0;
  append(text, (size_t)size);
}

// clang ends without destructors.
__attribute__((noreturn)) void _exit(int status) {
  note_end();
  for (;;) syscall(SYS_exit_group, status);
}

__attribute__((noreturn)) void _Exit(int status) { _exit(status); }
