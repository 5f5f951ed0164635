// The door for Python: which instruction sets were built, which of them this processor has, and threads.

#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "problem.h"

#define DECLARED(target)                                               \
    extern "C" int adapos_forward_##target(const Problem *, Parallel); \
    extern "C" int adapos_backward_##target(const Problem *, Parallel);

DECLARED(generic)
#ifdef WITH_AVX2
DECLARED(avx2)
#endif
#ifdef WITH_AVX512
DECLARED(avx512)
#endif

namespace {

struct Target {
    const char *name;
    bool (*here)();
    Run forward, backward;
};

// the best first
const Target TARGETS[] = {
#ifdef WITH_AVX512
    {"avx512",
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
     },
     adapos_forward_avx512, adapos_backward_avx512},
#endif
#ifdef WITH_AVX2
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }, adapos_forward_avx2,
     adapos_backward_avx2},
#endif
    {"generic", [] { return true; }, adapos_forward_generic, adapos_backward_generic},
};

// the caller's own OpenMP, so that its waiting threads do not compete with ours
typedef void (*GompParallel)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*Number)();
GompParallel gomp_parallel = nullptr;
Number thread_number = nullptr, thread_count = nullptr;

struct Region {
    Body body;
    void *context;
};

void in_region(void *given) {
    Region &region = *static_cast<Region *>(given);
    region.body(region.context, thread_number(), thread_count());
}

void with_openmp(int threads, Body body, void *context) {
    Region region = {body, context};
    gomp_parallel(in_region, &region, unsigned(threads), 0);
}

// threads of this call alone, which a forked child has too
void with_threads(int threads, Body body, void *context) {
    std::atomic<int> count{0};
    std::vector<std::thread> others;
    try {
        for (int index = 1; index < threads; index++) {
            others.emplace_back([&, index] {
                count.wait(0);
                body(context, index, count);
            });
        }
    } catch (const std::system_error &) {
        // fewer threads, then
    }
    count = int(others.size()) + 1;
    count.notify_all();
    body(context, 0, count);
    for (std::thread &other : others) other.join();
}

void alone(int, Body body, void *context) { body(context, 0, 1); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// the names of the targets that this processor can run, the best first, separated by spaces
const char *adapos_targets() {
    static const std::vector<char> names = [] {
        std::vector<char> made;
        for (const Target &target : TARGETS) {
            if (!target.here()) continue;
            if (!made.empty()) made.push_back(' ');
            made.insert(made.end(), target.name, target.name + std::strlen(target.name));
        }
        made.push_back(0);
        return made;
    }();
    return names.data();
}

void adapos_use_openmp(GompParallel parallel, Number number, Number count) {
    gomp_parallel = parallel, thread_number = number, thread_count = count;
}

// a mark of the sources, which Python compares with those it finds
const char *adapos_sources() { return SOURCES; }

// 0, 1: out of memory, 2: no such target here
int adapos_run(const char *name, int backward, const Problem *problem, int forked) {
    for (const Target &target : TARGETS) {
        if (std::strcmp(target.name, name) != 0 || !target.here()) continue;
        // libgomp's threads do not survive a fork
        Parallel parallel = problem->threads == 1 ? alone : gomp_parallel && !forked ? with_openmp : with_threads;
        return (backward ? target.backward : target.forward)(problem, parallel);
    }
    return 2;
}
}
#pragma GCC visibility pop
