//! Arguments for the NUMA nodes that an array is opened on.

use clap::Args;
use iomill::{ArrayOptions, Topology};

/// The nodes and their roles.
#[derive(Clone, Debug, Args)]
pub struct Nodes {
    /// The NUMA nodes: `machine` for the machine's own, `one`, or `emulate:N` to divide the CPUs among N
    #[arg(long, value_name = "NODES", default_value_t, global = true, help_heading = "Global options")]
    pub topology: Topology,
    /// Only these nodes have a cache [default: all]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', global = true, help_heading = "Global options")]
    pub cache_nodes: Option<Vec<usize>>,
    /// Only these nodes own drives. If a node with a cache owns none, the drives' threads do all I/O [default: all]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', global = true, help_heading = "Global options")]
    pub io_nodes: Option<Vec<usize>>,
}

impl Nodes {
    /// The same as options.
    pub fn apply(&self, options: ArrayOptions) -> ArrayOptions {
        let mut options = options.with_tuning(|tuning| tuning.topology(self.topology));
        if let Some(nodes) = &self.cache_nodes {
            options = options.with_tuning(|tuning| tuning.cache_nodes(nodes.clone()));
        }
        if let Some(nodes) = &self.io_nodes {
            options = options.with_tuning(|tuning| tuning.io_nodes(nodes.clone()));
        }
        options
    }
}
