//! The key-value store of the example, and the loads of YCSB on any store.

#[path = "../../../crates/iomill/examples/kv/table.rs"]
pub mod table;
#[path = "../../../crates/iomill/examples/kv/ycsb.rs"]
pub mod ycsb;
