"""The shared parts of the `bench_*` tools: workloads, load, measures, reports. Only `one_batch` knows the runtime."""
