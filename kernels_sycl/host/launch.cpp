// The streams and kernels of host/launch.h, on SYCL.
//
// Nothing here is ever destroyed: the SYCL runtime shuts down at the end of the process, in its own order, and its
// resources end with the process.

#include "host/launch.h"

#include <ftw.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(ACCEL_SYCL_AHEAD)
#include <sycl/sycl.hpp>
#else
// Single headers: sycl/sycl.hpp takes twice as long.
#include <sycl/ext/oneapi/experimental/raw_kernel_arg.hpp>
#include <sycl/handler.hpp>
#include <sycl/kernel_bundle.hpp>
#include <sycl/properties/all_properties.hpp>
#include <sycl/queue.hpp>

#include "host/kernel_texts.h"
#endif

namespace accel::xpu {

// The process that first used SYCL, or 0. All op libraries of a process share the variable (STB_GNU_UNIQUE).
__attribute__((visibility("default"))) inline std::atomic<pid_t> sycl_process{0};

namespace {

namespace exp = ::sycl::ext::oneapi::experimental;

constexpr char kRuntimeRemedy[] = "\nInstall the runtime: pip install intel-sycl-rt intel-opencl-rt.";

[[noreturn]] void fail(const std::string& found, const std::string& remedy) {
  throw std::runtime_error(found + '\n' + remedy);
}

[[noreturn]] void fail_to_build(const std::string& device) {
  fail("The SYCL runtime cannot compile kernels for " + device + ".",
       std::string("libsycl-jit is missing, cannot be opened, or is older than 2025.1.") + kRuntimeRemedy);
}

struct KernelCompileFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::vector<const Kernel*>& kernels() {
  static auto* const all = new std::vector<const Kernel*>;
  return *all;
}

// A forked child lacks the runtime's threads, and would wait for them forever.
void require_unforked() {
  pid_t first = 0;
  const pid_t here = ::getpid();
  if (!sycl_process.compare_exchange_strong(first, here) && first != here) {
    fail("SYCL was used by process " + std::to_string(first) + " before this one, " + std::to_string(here) +
             ", was forked from it; its runtime does not work in a forked child.",
         "Start workers with the method 'spawn' or 'forkserver', or fork before the first use of a SYCL op.");
  }
}

Device facts_of(const ::sycl::device& device) {
  namespace info = ::sycl::info::device;
  const std::vector<std::size_t> sub_groups = device.get_info<info::sub_group_sizes>();
  return {device.get_info<info::name>(),
          device.is_cpu(),
          device.has(::sycl::aspect::fp16),
          device.has(::sycl::aspect::fp64),
          std::find(sub_groups.begin(), sub_groups.end(), 16) != sub_groups.end(),
          device.get_info<info::max_compute_units>(),
          device.get_info<info::max_work_group_size>()};
}

unsigned lacking(const Device& device, unsigned needs) {
  return needs & ((device.has_fp16 ? 0U : kFp16) | (device.has_fp64 ? 0U : kFp64) |
                  (device.has_sub_groups_16 ? 0U : kSubGroups16));
}

struct BuiltKernel {
  ::sycl::kernel kernel;
  std::uint32_t arguments;
};

// A kernel of a program: one thread compiles it at its first launch, while others wait.
struct Slot {
  std::mutex mutex;
  std::atomic<const BuiltKernel*> built{nullptr};
};

// This library's kernels on one device in one context.
struct Program {
  Program(::sycl::context context, ::sycl::device device)
      : context(std::move(context)),
        device(std::move(device)),
        facts(facts_of(this->device)),
        slots(kernels().size()) {}

  ::sycl::context context;
  ::sycl::device device;
  Device facts;
  std::vector<Slot> slots;
};

#if !defined(ACCEL_SYCL_AHEAD)

std::string without_root(std::string text) {
  for (std::size_t at = 0; (at = text.find(kTextRoot, at)) != std::string::npos;) {
    text.erase(at, sizeof(kTextRoot) - 1);
  }
  return text;
}

using Bundle = ::sycl::kernel_bundle<::sycl::bundle_state::executable>;

int drop_if_device_code(const char* path, const struct stat*, int type, struct FTW*) {
  // Device code is 0.bin; its source is 0.src in the same directory.
  const std::string file = path;
  const std::size_t dot = std::min(file.rfind('.'), file.size());
  if (type == FTW_F && file.substr(dot) == ".bin" && ::access((file.substr(0, dot) + ".src").c_str(), F_OK) == 0) {
    ::unlink(path);
  }
  return 0;
}

std::string kept_kernels() {
  const char* const directory = std::getenv("SYCL_CACHE_DIR");
  return directory == nullptr ? "" : directory;
}

// Removes all kernels, because only the runtime knows which file belongs to which; it compiles missing ones again.
void drop_kept_kernels() {
  constexpr int kOpenDirectories = 16;
  ::nftw(kept_kernels().c_str(), drop_if_device_code, kOpenDirectories, FTW_PHYS);
}

// The driver's error for a file that it did not make; release 2026.2 does not check the files in its cache.
bool is_damaged(const ::sycl::exception& error) { return std::strstr(error.what(), "INVALID_BINARY") != nullptr; }

Bundle compile_texts(const ::sycl::context& context, const ::sycl::device& device, const std::string& name) {
  const KernelTexts& texts = kernel_texts();
  exp::include_files files;
  std::string start;
  for (std::size_t i = 0; i < texts.file_count; ++i) {
    const std::string path = kTextRoot + std::string(texts.files[i].name);
    files.add(path, texts.files[i].text);
    if (i < texts.own_count) {
      start += "#include \"" + path + "\"\n";
    }
  }
  const std::vector<std::string> options(texts.options, texts.options + texts.option_count);
  const auto build = [&] {
    auto source =
        exp::create_kernel_bundle_from_source(context, exp::source_language::sycl, start, exp::properties{files});
    return exp::build(source, std::vector<::sycl::device>{device},
                      exp::properties{exp::build_options{options}, exp::registered_names{name}});
  };
  try {
    try {
      return build();
    } catch (const ::sycl::exception& error) {
      if (!is_damaged(error)) {
        throw;
      }
    }
    drop_kept_kernels();
    return build();
  } catch (const ::sycl::exception& error) {
    const std::string where = device.get_info<::sycl::info::device::name>();
    if (is_damaged(error)) {
      throw KernelCompileFailed(where + " refused the compiled kernel " + name + " that is kept in " + kept_kernels() +
                                ", which may be damaged and could not be replaced: " + error.what() +
                                "\nRemove what is in that directory.");
    }
    throw KernelCompileFailed("SYCL's kernel compiler refused " + name + " for " + where + ": " +
                              without_root(error.what()));
  }
}

bool can_build(::sycl::device device) { return device.ext_oneapi_can_build(exp::source_language::sycl); }

::sycl::kernel compile(const Program& program, const Kernel& kernel) {
  if (!can_build(program.device)) {
    fail_to_build(program.facts.name);
  }
  return compile_texts(program.context, program.device, kernel.name()).ext_oneapi_get_kernel(kernel.name());
}

#else

bool can_build(const ::sycl::device&) { return true; }

::sycl::kernel compile(const Program& program, const Kernel& kernel) {
  std::optional<::sycl::kernel> made;
  kernel.ahead()(&program.context, &made);
  return *std::move(made);
}

#endif

// A kernel of a program, compiled at the first call and kept forever.
const BuiltKernel& built(Program& program, const Kernel& kernel) {
  Slot& slot = program.slots[kernel.index()];
  if (const BuiltKernel* const ready = slot.built.load(std::memory_order_acquire)) {
    return *ready;
  }
  const std::lock_guard<std::mutex> lock(slot.mutex);
  if (const BuiltKernel* const ready = slot.built.load(std::memory_order_acquire)) {
    return *ready;
  }
  if (const unsigned missing = lacking(program.facts, kernel.needs())) {
    const char* const what = (missing & kSubGroups16) != 0 ? "works by sub-groups of 16 work-items"
                             : (missing & kFp64) != 0      ? "computes in double (fp64)"
                                                           : "computes in half (fp16)";
    fail("Kernel " + std::string(kernel.name()) + ' ' + what + ", which " + program.facts.name + " does not know.",
         missing == kSubGroups16 ? "Use another device." : "Use another type, or a device that has it.");
  }
  ::sycl::kernel made = compile(program, kernel);
  const std::uint32_t arguments = made.get_info<::sycl::info::kernel::num_args>();
  const auto* const fresh = new BuiltKernel{std::move(made), arguments};
  slot.built.store(fresh, std::memory_order_release);
  return *fresh;
}

// The program of a device in a context.
Program& program_of(const ::sycl::context& context, const ::sycl::device& device) {
  static auto* const mutex = new std::mutex;
  static auto* const programs = new std::vector<std::unique_ptr<Program>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  for (const auto& program : *programs) {
    if (program->context == context && program->device == device) {
      return *program;
    }
  }
  programs->push_back(std::make_unique<Program>(context, device));
  return *programs->back();
}

::sycl::device find_host_device() {
  std::string found;
  std::string unfit;
  for (const ::sycl::device& device : ::sycl::device::get_devices()) {
    if (device.is_cpu() && can_build(device)) {
      return device;
    }
    const auto name = device.get_info<::sycl::info::device::name>();
    unfit = device.is_cpu() ? name : unfit;
    found += (found.empty() ? "" : ", ") + name;
  }
  if (!unfit.empty()) {
    fail_to_build(unfit);
  }
  fail("No SYCL CPU device was found; devices: " + (found.empty() ? "none" : found) + ".",
       std::string("CPU tensors need Intel's OpenCL runtime (intel-opencl-rt).") + kRuntimeRemedy);
}

struct Host {
  ::sycl::device device = find_host_device();
  ::sycl::context context{device};
};

const Host& host() {
  static const Host* const one = new Host;
  return *one;
}

}  // namespace

Kernel::Kernel(const char* name, unsigned needs, AheadKernel ahead)
    : name_(name), needs_(needs), ahead_(ahead), index_(kernels().size()) {
  kernels().push_back(this);
}

class StreamState {
 public:
  StreamState(::sycl::queue queue, Program& program, bool is_ours)
      : queue(std::move(queue)), program(program), is_ours(is_ours) {}

  ::sycl::queue queue;
  Program& program;
  const bool is_ours;
  bool is_pending = false;
};

namespace {

// Queues of the host's device that no thread uses at present.
struct IdleStreams {
  std::mutex mutex;
  std::vector<StreamState*> states;
};

IdleStreams& idle() {
  static auto* const one = new IdleStreams;
  return *one;
}

void rethrow(::sycl::exception_list errors) {
  for (const std::exception_ptr& error : errors) {
    std::rethrow_exception(error);
  }
}

}  // namespace

Stream host_stream() {
  require_unforked();
  {
    const std::lock_guard<std::mutex> lock(idle().mutex);
    if (!idle().states.empty()) {
      StreamState* const state = idle().states.back();
      idle().states.pop_back();
      return Stream(state);
    }
  }
  Program& program = program_of(host().context, host().device);
  const ::sycl::property_list in_order{::sycl::property::queue::in_order()};
  return Stream(new StreamState({host().context, host().device, rethrow, in_order}, program, true));
}

Stream queue_stream(void* sycl_queue) {
  require_unforked();
  const auto& queue = *static_cast<const ::sycl::queue*>(sycl_queue);
  return Stream(new StreamState(queue, program_of(queue.get_context(), queue.get_device()), false));
}

Stream::~Stream() {
  if (state_ == nullptr) {
    return;
  }
  if (!state_->is_ours) {
    delete state_;
    return;
  }
  try {
    finish();
    const std::lock_guard<std::mutex> lock(idle().mutex);
    idle().states.push_back(state_);
  } catch (...) {  // another error is being thrown already; this queue is not used again
  }
}

const Device& Stream::device() const { return state_->program.facts; }

void Stream::finish() {
  if (state_->is_ours && state_->is_pending) {
    state_->is_pending = false;
    state_->queue.wait_and_throw();
  }
}

void Stream::enqueue(const Kernel& kernel, Range range, const KernelArgument* arguments, std::size_t count) {
  const BuiltKernel& ready = built(state_->program, kernel);
  if (ready.arguments != count) {
    fail("Kernel " + std::string(kernel.name()) + " takes " + std::to_string(ready.arguments) +
             " arguments and was given " + std::to_string(count) + ".",
         "Pass launch() one argument for each parameter of the kernel.");
  }
  if (range.groups == 0) {
    return;
  }
  state_->queue.submit([&](::sycl::handler& handler) {
    for (std::size_t i = 0; i < count; ++i) {
      const KernelArgument& argument = arguments[i];
      if (argument.is_pointer) {
        void* address = nullptr;
        std::memcpy(&address, argument.value, sizeof(address));
        handler.set_arg(static_cast<int>(i), address);
      } else {
        handler.set_arg(static_cast<int>(i), exp::raw_kernel_arg(argument.value, argument.bytes));
      }
    }
    handler.parallel_for(::sycl::nd_range<1>(range.groups * range.group_size, range.group_size), ready.kernel);
  });
  state_->is_pending = true;
}

namespace {

// The devices that kernels can be compiled for, one of each name.
std::vector<::sycl::device> distinct_devices() {
  std::vector<::sycl::device> found;
  std::vector<std::string> names;
  for (const ::sycl::device& device : ::sycl::device::get_devices()) {
    const std::string name = device.get_info<::sycl::info::device::name>();
    const bool is_new = std::find(names.begin(), names.end(), name) == names.end();
    if (is_new && (device.is_cpu() || device.is_gpu()) && can_build(device)) {
      names.push_back(name);
      found.push_back(device);
    }
  }
  if (found.empty()) {
    find_host_device();  // throws an error that lists the available devices
  }
  return found;
}

// Twice: the first time stores the compiled text, and the second, which starts from that, the device code under the
// name that later processes look up (observed with release 2026.2).
void compile_for_later(const ::sycl::device& device, const Kernel& kernel) {
  for (int pass = 0; pass < 2; ++pass) {
    Program program{::sycl::context(device), device};
    if (lacking(program.facts, kernel.needs()) == 0) {
      delete &built(program, kernel);
    }
  }
}

}  // namespace
}  // namespace accel::xpu

// For the build: compiles the library's first `limit` kernels for the devices that are here, `jobs` at a time, so that
// the runtime's cache has them. Returns 0; 1 if a kernel did not compile, 2 if no device was found. The reason is in
// `error`, cut to `size` bytes.
extern "C" __attribute__((visibility("default"))) int accel_sycl_prepare(std::size_t limit, std::size_t jobs,
                                                                         char* error, std::size_t size) {
  using namespace accel::xpu;
  int code = 0;
  std::mutex mutex;
  const auto report = [&](const std::exception& exception, int what) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (code == 0 && size > 0) {
      std::strncpy(error, exception.what(), size - 1);
      error[size - 1] = '\0';
    }
    code = code == 0 ? what : code;
  };
  const auto explained = [&](const auto& action) {
    try {
      action();
    } catch (const KernelCompileFailed& exception) {
      report(exception, 1);
    } catch (const std::exception& exception) {
      report(exception, 2);
    }
  };
  explained([&] {
    require_unforked();
    const std::vector<::sycl::device> devices = distinct_devices();
    const std::size_t count = std::min(limit, kernels().size()) * devices.size();
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = 0; (i = next.fetch_add(1)) < count;) {
        explained([&] { compile_for_later(devices[i % devices.size()], *kernels()[i / devices.size()]); });
      }
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < std::min(jobs, count); ++i) {
      others.emplace_back(work);
    }
    work();
    for (std::thread& other : others) {
      other.join();
    }
  });
  return code;
}
