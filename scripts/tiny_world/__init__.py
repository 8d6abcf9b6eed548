"""The small world that the embedded model is trained for and judged by: seeded tasks with one right answer each."""
