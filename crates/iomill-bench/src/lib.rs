//! Workloads, rivals and figures.
