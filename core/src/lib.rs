//! What a container asks for, and who holds what; small and synchronous.
//!
//! Words: the classes of devices ([`class`]), container ids ([`container_id`]), names of pods ([`pod`]). Contracts between
//! two programs of ours: the operator's configuration ([`config`], [`select`], [`bundle`], [`host_settings`],
//! [`kubernetes_settings`]), what a container asks for ([`request`]) and may have ([`policy`]), the arguments that the
//! generator writes and the hook reads ([`hook_arguments`], [`expectation`]), which devices stand for each other ([`pool`]) or go
//! with a GPU ([`gpu_name`], [`nearness`], [`kfd`]), which are given to nobody new ([`drain`]), who has those that only so many
//! may have ([`lease`]), and what cluster engines have reserved for their tasks ([`ticket`]). Whether programs of a container
//! can use RDMA devices ([`rdma_providers`], [`rdma_companion`]). Interfaces that containers get for themselves ([`netdev`]), and where all of it is
//! kept while containers live ([`run_dir`]).

pub mod bundle;
pub mod class;
pub mod config;
pub mod container_id;
mod device_ref;
pub mod drain;
pub mod expectation;
pub mod gpu_name;
pub mod hook_arguments;
pub mod host_settings;
pub mod kfd;
pub mod kubernetes_settings;
pub mod lease;
pub mod nearness;
pub mod netdev;
pub mod onload;
pub mod pod;
pub mod policy;
pub mod pool;
pub mod rdma_companion;
pub mod rdma_providers;
pub mod request;
pub mod run_dir;
pub mod select;
pub mod ticket;
pub mod timestamp;
pub mod versioned;
pub mod vf_config;
