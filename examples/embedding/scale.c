#include <stddef.h>

void scale(float *values, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
}
