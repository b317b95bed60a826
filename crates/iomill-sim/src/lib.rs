//! Simulated drives.
