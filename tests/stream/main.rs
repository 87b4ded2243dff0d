//! The elements in real pipelines.
