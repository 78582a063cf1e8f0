//! Values with units (plugins/shared/structs/proto), and the two messages of Google's that they need.

use std::collections::BTreeMap;

/// What users select a device by.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Attribute {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    pub value: Option<Value>,
    /// The unit of a number, one of those that Nomad knows; a wrong one ends the plugin.
    #[prost(string, tag = "5")]
    pub unit: String,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Value {
    #[prost(double, tag = "1")]
    Float(f64),
    /// A whole number.
    #[prost(int64, tag = "2")]
    Int(i64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatObject {
    /// What stands below, by name.
    #[prost(btree_map = "string, message", tag = "1")]
    pub nested: BTreeMap<String, StatObject>,
    /// What stands here, by name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub attributes: BTreeMap<String, StatValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatValue {
    /// A whole number.
    #[prost(message, optional, tag = "3")]
    pub int_numerator_val: Option<i64>,
    /// What it is a part of.
    #[prost(message, optional, tag = "4")]
    pub int_denominator_val: Option<i64>,
    #[prost(message, optional, tag = "5")]
    pub string_val: Option<String>,
    #[prost(string, tag = "7")]
    pub unit: String,
    /// What it is, for people.
    #[prost(string, tag = "8")]
    pub desc: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds beyond them.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds beyond them.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}
