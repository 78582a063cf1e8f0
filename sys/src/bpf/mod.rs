//! Programs that the kernel runs (bpf(2)): those of a cgroup that allow devices, and those on an interface. Numbers and layouts
//! are those of include/uapi/linux/bpf.h.

pub mod cgroup;
pub mod interface;
mod syscall;
