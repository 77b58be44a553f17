// libc++'s message about an uncaught exception would bring its demangler into every library: a quarter of its size. This
// one, in its place, fails.
#include <stddef.h>

__attribute__((visibility("hidden"))) char* __cxa_demangle(const char* name, char* buffer, size_t* size, int* status) {
  (void)name, (void)buffer, (void)size;
  if (status != NULL) *status = -1;
  return NULL;
}
