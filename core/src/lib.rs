//! The vocabulary of the project: what containers request, what they are allowed, and which
//! container holds what. Small and synchronous.
//!
//! - Terms: device classes ([`class`]), container IDs ([`container_id`]), pod names ([`pod`]).
//! - Contracts between two of our programs: the configuration ([`config`], [`select`], [`bundle`], [`host_settings`],
//!   [`kubernetes_settings`], [`vf_config`]), requests ([`request`]) and what the operator allows ([`policy`]), and the
//!   arguments that the generator writes and the hook reads ([`hook_arguments`], [`expectation`]).
//! - Devices that are interchangeable ([`pool`]) or near a GPU ([`gpu_name`], [`nearness`], [`kfd`]).
//! - Devices that are withheld from new containers ([`drain`]), leased ([`lease`]), or reserved by cluster engines ([`ticket`]).
//! - Whether programs of a container can use RDMA devices ([`rdma_providers`], [`rdma_companion`]).
//! - Interfaces that move into containers ([`netdev`]).
//! - The directory of files about running containers ([`run_dir`]).

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
