"""What the `bench_*` tools share: workloads, load, measures, reports. Only `one_batch` knows the runtime."""
