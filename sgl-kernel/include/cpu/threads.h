// Sharing work out to threads, and memory of each thread's own.
#pragma once

#include <cstdlib>

// Call work(data, chunk) for every chunk in [0, chunks), each once, on whichever threads are free, and return when all
// are done. csrc/cpu/threads.cpp, which is a library of its own so that all kernels have the same threads.
extern "C" void mysgl_share(void (*work)(void *, long), void *data, long chunks);

// Threads that work is shared out to, the caller among them.
extern "C" long mysgl_threads();

// Say what will be read next: helpers without work bring it into the cache, until there is work. Any address will do.
extern "C" void mysgl_fetch(const void *from, long bytes);

namespace mysgl {

// Call work(first, end) for ranges of at most `chunk` numbers that make up [0, count). Who computes a range changes
// nothing about its result.
template <typename Work>
void share(long count, long chunk, const Work &work) {
  struct Plan {
    const Work &work;
    long count, chunk;
  } plan{work, count, chunk};
  auto run = [](void *given, long number) {
    const Plan &plan = *static_cast<const Plan *>(given);
    const long first = number * plan.chunk;
    plan.work(first, plan.count - first < plan.chunk ? plan.count : first + plan.chunk);
  };
  mysgl_share(run, &plan, (count + chunk - 1) / chunk);
}

// Memory of this thread, uninitialised, aligned to a cache line: of each slot the same until more is wanted.
template <typename T>
T *scratch(int slot, long count) {
  constexpr int SLOTS = 6;
  thread_local void *memory[SLOTS];
  thread_local size_t sizes[SLOTS];
  size_t size = (count * sizeof(T) + 63) / 64 * 64;
  if (sizes[slot] < size) {
    std::free(memory[slot]);
    memory[slot] = std::aligned_alloc(64, size);
    sizes[slot] = size;
  }
  return static_cast<T *>(memory[slot]);
}

}  // namespace mysgl
