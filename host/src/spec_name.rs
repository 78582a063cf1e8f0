//! Names of our specifications. Devices and pools of a class are in separate files, since engines that do not support a
//! pool's annotations reject the whole file.

use std::fmt;

use onload_core::class::Class;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecPart {
    Devices,
    Pools,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpecName {
    pub class: Class,
    pub part: SpecPart,
}

impl SpecName {
    pub const fn devices(class: Class) -> SpecName {
        SpecName { class, part: SpecPart::Devices }
    }

    pub const fn pools(class: Class) -> SpecName {
        SpecName { class, part: SpecPart::Pools }
    }

    pub const fn for_class(class: Class) -> [SpecName; 2] {
        [SpecName::devices(class), SpecName::pools(class)]
    }
}

impl fmt::Display for SpecName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            SpecPart::Devices => write!(f, "{}", self.class),
            SpecPart::Pools => write!(f, "{}-pools", self.class),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_specifications_have_one_name() {
        let names: BTreeSet<String> = Class::ALL
            .into_iter()
            .flat_map(SpecName::for_class)
            .map(|name| name.to_string())
            .collect();
        assert_eq!(names.len(), 2 * Class::ALL.len());
        assert!(names.contains("vfio") && names.contains("vfio-pools"));
    }
}
