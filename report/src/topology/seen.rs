//! What a topology is made of, before it is put together.

use onload_core::lease::Listed;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::pools::Pools;

use crate::status::Grantee;

#[derive(Clone, Copy, Debug)]
pub struct Seen<'s> {
    pub host: &'s Host,
    pub inventory: &'s Inventory,
    pub pools: &'s Pools,
    /// Its leases; none where they are not known, as to everybody but root.
    pub leases: Option<&'s [Listed]>,
    pub grantees: &'s [Grantee],
}
