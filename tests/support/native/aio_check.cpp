// The engine of async_io without torch and Python: random ranges of one file, written and read back by several callers
// at once, on every engine that the kernel grants. Arguments: the file. Prints a line for each engine.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "kernels/aio/handle.h"

namespace aio = accel::aio;

namespace {

constexpr std::int64_t kCallers = 3, kPieces = 40, kMostBytes = 300'000;

int failures = 0;

void expect(bool is_so, const char* what) {
  if (!is_so) {
    std::printf("FAILED: %s\n", what);
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
  }
}

struct Piece {
  std::int64_t offset;
  std::vector<char> bytes;
};

// Neighbours that share pages, each caller with a part of the file of its own.
std::vector<Piece> pieces_of(std::int64_t caller, std::mt19937& random) {
  std::vector<Piece> pieces;
  std::int64_t offset = caller * kPieces * kMostBytes + caller;
  for (int i = 0; i < kPieces; ++i) {
    Piece piece{offset, std::vector<char>(random() % kMostBytes)};
    for (char& byte : piece.bytes) {
      byte = static_cast<char>(random());
    }
    offset += static_cast<std::int64_t>(piece.bytes.size());
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<aio::Outcome> finish(aio::Handle& handle, const std::vector<std::int64_t>& ids) {
  while (!handle.wait(ids, 50)) {
  }
  return handle.take(ids);
}

std::atomic<std::int64_t> last_id{0};

void call(aio::Handle& handle, const char* path, std::int64_t caller) {
  std::mt19937 random(static_cast<unsigned>(caller));
  std::vector<Piece> pieces = pieces_of(caller, random);
  for (const bool is_write : {true, false}) {
    std::vector<std::vector<char>> targets;
    std::vector<std::int64_t> running;
    for (Piece& piece : pieces) {
      targets.emplace_back(piece.bytes.size());
      char* const data = is_write ? piece.bytes.data() : targets.back().data();
      const int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      const aio::Request request{data, static_cast<std::int64_t>(piece.bytes.size()), piece.offset, is_write, is_write};
      running.push_back(++last_id);
      expect(handle.submit(running.back(), descriptor, request, true) == 0, "submit");
    }
    const std::vector<aio::Outcome> finished = finish(handle, running);
    expect(finished.size() == running.size(), "all operations");
    for (const aio::Outcome& outcome : finished) {
      expect(outcome.failure.kind == aio::FailureKind::none, "an operation");
    }
    for (std::size_t i = 0; i < pieces.size() && !is_write; ++i) {
      expect(targets[i] == pieces[i].bytes, "the bytes");
    }
  }
}

void check(const char* path, const char* name, const aio::Settings& settings) {
  std::vector<char> late(5'000'000, 'x');  // outlives the handle
  aio::Handle handle(settings);
  if (const int error = handle.start(); error != 0) {
    std::printf("%s: %s\n", name, std::strerror(error));
    return;
  }
  std::vector<std::thread> callers;
  for (std::int64_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] { call(handle, path, caller); });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  // In flight when the handle is destroyed.
  handle.submit(++last_id, open(path, O_WRONLY), {late.data(), 5'000'000, 3, true, false}, true);
  std::printf("%s: done\n", name);
}

}  // namespace

int main(int, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const aio::Settings base{aio::Engine::threads, 64 << 10, 8, false, true, 3};
  const std::pair<const char*, aio::Engine> engines[] = {
      {"io_uring", aio::Engine::io_uring}, {"libaio", aio::Engine::linux_aio}, {"threads", aio::Engine::threads}};
  for (const auto& [name, engine] : engines) {
    aio::Settings settings = base;
    settings.engine = engine;
    for (const bool overlaps : {true, false}) {
      settings.overlap_events = overlaps;
      settings.single_submit = !overlaps;
      check(arguments[1], name, settings);
    }
  }
  return failures == 0 ? 0 : 1;
}
