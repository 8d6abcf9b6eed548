// The threads of the kernels: the caller, and helpers that take chunks of its work beside it.
//
// The caller waits for chunks that were begun, never for a helper to come: on a machine where others run too, a helper
// that has no processor costs nothing but its help. OpenMP's barriers wait for every thread at the end of every
// kernel, of which a step has hundreds.
//
//     state = job number << 32 | chunks that nobody has begun          one word, so a chunk is of one job for certain
//
// Helpers spin for a moment after each job, since the next kernel is microseconds away, and sleep when none comes. In
// that moment they bring into the cache what the caller said that it will read next, so memory works while Python thinks.

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace {

constexpr int SPINS = 64;                                  // between looks at the clock
constexpr auto PATIENCE = std::chrono::microseconds(150);  // of a helper without work, before it sleeps
constexpr long FETCHED = 2048;                             // bytes between looks for work
constexpr int WAITS = 2000;                                // of the caller for others' chunks, before it gives way

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  asm volatile("" ::: "memory");
#endif
}

struct Pool {
  std::atomic<uint64_t> state{0};
  std::atomic<long> done{0};
  std::atomic<int> sleeping{0};
  std::atomic<bool> busy{false};
  void (*work)(void *, long) = nullptr;
  void *data = nullptr;
  long chunks = 0;
  int helpers = 0;
  std::atomic<const char *> fetch_from{nullptr};
  std::atomic<const char *> fetch_end{nullptr};
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake = PTHREAD_COND_INITIALIZER;

  // Do one chunk that nobody has begun; false if there is none. What a job is may be read once one of its chunks is
  // claimed: until that is done the job is not over.
  bool help() {
    uint64_t seen = state.load(std::memory_order_acquire);
    do {
      if (uint32_t(seen) == 0) return false;
    } while (!state.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    work(data, chunks - long(uint32_t(seen)));
    done.fetch_add(1, std::memory_order_release);
    return true;
  }

  bool idle() const { return uint32_t(state.load(std::memory_order_seq_cst)) == 0; }

  // One piece of what will be read next; false if there is nothing left of it. No address can do harm here.
  bool fetch() {
    if (fetch_from.load(std::memory_order_relaxed) >= fetch_end.load(std::memory_order_relaxed)) return false;
    const char *from = fetch_from.fetch_add(FETCHED, std::memory_order_relaxed);
    for (long i = 0; i < FETCHED; i += 64) __builtin_prefetch(from + i, 0, 2);
    return true;
  }

  void sleep() {
    pthread_mutex_lock(&mutex);
    sleeping.fetch_add(1, std::memory_order_seq_cst);
    while (idle()) pthread_cond_wait(&wake, &mutex);
    sleeping.fetch_sub(1, std::memory_order_seq_cst);
    pthread_mutex_unlock(&mutex);
  }

  [[noreturn]] void serve() {
    for (;;) {
      const auto since = std::chrono::steady_clock::now();
      while (idle() && std::chrono::steady_clock::now() - since < PATIENCE) {
        for (int i = 0; i < SPINS && idle(); i++)
          if (!fetch()) pause();
        sched_yield();  // to others on this processor, the caller among them
      }
      if (idle()) sleep();
      while (help()) {
      }
    }
  }

  void run(void (*new_work)(void *, long), void *new_data, long count) {
    work = new_work, data = new_data, chunks = count;
    done.store(0, std::memory_order_relaxed);
    const uint64_t job = (state.load(std::memory_order_relaxed) >> 32) + 1;
    state.store(job << 32 | uint64_t(count), std::memory_order_seq_cst);
    if (sleeping.load(std::memory_order_seq_cst) > 0) {
      pthread_mutex_lock(&mutex);
      pthread_cond_broadcast(&wake);
      pthread_mutex_unlock(&mutex);
    }
    while (help()) {
    }
    for (int waits = 0; done.load(std::memory_order_acquire) < count; waits++)
      waits < WAITS ? pause() : (void)sched_yield();
  }
};

Pool &pool() {
  static Pool &made = *new Pool;  // never destroyed: helpers may sleep in it when the process ends
  return made;
}

}  // namespace

extern "C" {

// So many threads with the caller, at least; helpers are never sent away.
void mysgl_use_threads(int threads) {
  Pool &all = pool();
  while (all.helpers < threads - 1) {
    pthread_t thread;
    auto serve = [](void *given) -> void * { static_cast<Pool *>(given)->serve(); };
    if (pthread_create(&thread, nullptr, serve, &all)) return;
    pthread_detach(thread);
    all.helpers++;
  }
}

long mysgl_threads() { return pool().helpers + 1; }

void mysgl_fetch(const void *from, long bytes) {
  Pool &all = pool();
  const char *begin = static_cast<const char *>(from);
  all.fetch_end.store(nullptr, std::memory_order_relaxed);
  all.fetch_from.store(begin, std::memory_order_relaxed);
  all.fetch_end.store(begin + bytes, std::memory_order_relaxed);
}

// Callers at the same time: the first has the helpers, the others are alone.
void mysgl_share(void (*work)(void *, long), void *data, long chunks) {
  Pool &all = pool();
  if (chunks < 2 || all.helpers == 0 || all.busy.exchange(true, std::memory_order_acquire)) {
    for (long i = 0; i < chunks; i++) work(data, i);
    return;
  }
  all.run(work, data, chunks);
  all.busy.store(false, std::memory_order_release);
}

}
