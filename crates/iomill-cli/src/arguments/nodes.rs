//! Arguments on the NUMA nodes that an array is opened on.

use clap::Args;
use iomill::{ArrayOptions, Topology};

/// The nodes and what they do.
#[derive(Clone, Debug, Args)]
pub struct Nodes {
    /// The NUMA nodes: `machine` as they are, `one`, or `emulate:N` to divide the CPUs among N
    #[arg(long, value_name = "NODES", default_value_t, global = true, help_heading = "Global options")]
    pub topology: Topology,
    /// Only these nodes cache [default: all]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', global = true, help_heading = "Global options")]
    pub cache_nodes: Option<Vec<usize>>,
    /// Only these nodes own drives; where one that caches is not among them, drives are left to their threads [default: all]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', global = true, help_heading = "Global options")]
    pub io_nodes: Option<Vec<usize>>,
}

impl Nodes {
    /// The same as options.
    pub fn apply(&self, options: ArrayOptions) -> ArrayOptions {
        let mut options = options.topology(self.topology);
        if let Some(nodes) = &self.cache_nodes {
            options = options.cache_nodes(nodes.clone());
        }
        if let Some(nodes) = &self.io_nodes {
            options = options.io_nodes(nodes.clone());
        }
        options
    }
}
