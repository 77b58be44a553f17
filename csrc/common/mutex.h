// Locks. The header <mutex> would cost the compiler up to a quarter of a second for each file.
#pragma once

#include <pthread.h>

namespace accel {

class Mutex {
 public:
  enum class Kind { plain, recursive };  // recursive: the thread that holds it may lock it again

  explicit Mutex(Kind kind = Kind::plain) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, kind == Kind::plain ? PTHREAD_MUTEX_NORMAL : PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  ~Mutex() { pthread_mutex_destroy(&mutex_); }

  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

// Holds a mutex for its lifetime.
class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace accel
