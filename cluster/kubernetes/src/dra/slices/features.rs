//! Features of the server. A server silently drops the fields of disabled features.

use std::fmt;

/// Features of dynamic resource allocation that slices use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DraFeatures {
    /// Devices that several claims share (KEP-5075, `DRAConsumableCapacity`).
    pub sharing: bool,
    /// Taints of devices (KEP-5055, `DRADeviceTaints`).
    pub taints: bool,
}

impl DraFeatures {
    pub const ALL: DraFeatures = DraFeatures { sharing: true, taints: true };
    /// No features, as in Kubernetes 1.34.
    pub const NONE: DraFeatures = DraFeatures { sharing: false, taints: false };

    pub fn union(self, other: DraFeatures) -> DraFeatures {
        DraFeatures { sharing: self.sharing || other.sharing, taints: self.taints || other.taints }
    }

    /// Returns the features without the lost ones.
    pub fn without(self, lost: DraFeatures) -> DraFeatures {
        DraFeatures { sharing: self.sharing && !lost.sharing, taints: self.taints && !lost.taints }
    }
}

impl fmt::Display for DraFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<&str> = [(self.sharing, "consumable capacity"), (self.taints, "taints")]
            .iter()
            .filter(|(is_there, _)| *is_there)
            .map(|(_, name)| *name)
            .collect();
        if named.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&named.join(", "))
    }
}
