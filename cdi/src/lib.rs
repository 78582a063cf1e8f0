//! The Container Device Interface.
