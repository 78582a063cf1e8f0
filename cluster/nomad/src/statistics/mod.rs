//! What is counted of devices: the bytes and errors of interfaces, Onload's stacks, the counters of RDMA
//! devices, free huge pages.

mod read;
mod values;

pub use read::read;
