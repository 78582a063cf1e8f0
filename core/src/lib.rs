//! The vocabulary of the project: what containers request and what they are allowed. Small and
//! synchronous; reads no files but its own.
//!
//! - Terms: device classes ([`class`]), container IDs ([`container_id`]), pod names ([`pod`]),
//!   devices ([`device_id`]), ResourceClaims ([`claim_uid`]), reservations ([`token`]).
//! - Contracts between two of our programs: the configuration ([`config`], [`select`], [`bundle`], [`host_settings`],
//!   [`kubernetes_settings`], [`vf_config`]), requests ([`request`]) and what the operator allows ([`policy`]), and the
//!   arguments that the generator writes and the hook reads ([`hook_arguments`], [`expectation`]).
//! - Devices that are interchangeable ([`pool`]) or near a GPU ([`gpu_name`], [`nearness`], [`kfd`]).
//! - Whether programs of a container can use RDMA devices ([`rdma_providers`], [`rdma_companion`]).
//! - Interfaces that move into containers ([`netdev`]).

pub mod bundle;
pub mod claim_uid;
pub mod class;
pub mod config;
pub mod container_id;
pub mod device_id;
mod device_ref;
pub mod expectation;
pub mod gpu_name;
pub mod hook_arguments;
pub mod host_settings;
pub mod kfd;
pub mod kubernetes_settings;
pub mod nearness;
pub mod netdev;
pub mod onload;
pub mod pod;
pub mod policy;
pub mod pool;
pub mod rdma_companion;
pub mod rdma_providers;
pub mod request;
pub mod select;
pub mod timestamp;
pub mod token;
pub mod versioned;
pub mod vf_config;
