#include "kernels/aio/queue.h"

namespace accel::aio {

std::unique_ptr<Queue> make_queue(Engine engine, int depth, int& error) {
  switch (engine) {
    case Engine::io_uring:
      return make_uring_queue(depth, error);
    case Engine::linux_aio:
      return make_linux_aio_queue(depth, error);
    case Engine::threads:
      return make_thread_queue(depth, error);
  }
  return nullptr;
}

}  // namespace accel::aio
