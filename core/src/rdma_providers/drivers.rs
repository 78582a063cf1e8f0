//! The providers of the kernel drivers, and the names of rdma-core's libraries (rdma-core
//! 691953d8d).

/// The providers and their kernel drivers. The first driver is that of the PCI function in sysfs,
/// or the module of a software device; the modules of the RDMA subsystem follow.
const PROVIDERS: [(&str, &[&str]); 18] = [
    ("mlx4", &["mlx4_core", "mlx4_ib"]),
    ("mlx5", &["mlx5_core", "mlx5_ib"]),
    ("bnxt_re", &["bnxt_en"]),
    ("irdma", &["ice", "i40e", "idpf"]),
    ("ionic", &["ionic_rdma"]),
    ("efa", &[]),
    ("mana", &["mana_ib"]),
    ("hns", &["hns3", "hns_roce_hw_v2"]),
    ("erdma", &[]),
    ("qedr", &["qede", "qed"]),
    ("cxgb4", &["iw_cxgb4"]),
    ("hfi1verbs", &["hfi1"]),
    ("ipathverbs", &["ib_qib", "qib"]),
    ("mthca", &["ib_mthca"]),
    ("ocrdma", &["be2net"]),
    ("vmw_pvrdma", &[]),
    ("rxe", &["rdma_rxe"]),
    ("siw", &[]),
];

pub const LIBRDMACM: &str = "librdmacm.so.1";

/// librdmacm, and the libraries that programs open by name and that contain a provider
/// (`rdma_shared_provider` in providers/*/CMakeLists.txt). All of them have to be of the same
/// rdma-core as libibverbs.
pub(super) const PUBLIC_LIBRARIES: [&str; 7] = [
    LIBRDMACM,
    "libmlx4.so.1",
    "libmlx5.so.1",
    "libefa.so.1",
    "libmana.so.1",
    "libhns.so.1",
    "libionic.so.1",
];

/// Returns the provider's name, as in `libmlx5-rdmav34.so` and `driver mlx5`.
pub(super) fn provider_name(driver: &str) -> Option<&'static str> {
    PROVIDERS
        .iter()
        .find(|(provider, drivers)| *provider == driver || drivers.contains(&driver))
        .map(|(provider, _)| *provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_found_by_every_name_of_its_driver() {
        for (driver, wanted) in [
            ("mlx5_core", "mlx5"),
            ("mlx5", "mlx5"),
            ("bnxt_en", "bnxt_re"),
            ("ice", "irdma"),
            ("rdma_rxe", "rxe"),
            ("siw", "siw"),
            ("hfi1", "hfi1verbs"),
            ("ib_qib", "ipathverbs"),
            ("ib_mthca", "mthca"),
            ("be2net", "ocrdma"),
            ("vmw_pvrdma", "vmw_pvrdma"),
        ] {
            assert_eq!(provider_name(driver), Some(wanted));
        }
        assert_eq!(provider_name("of_tomorrow"), None);
        assert_eq!(provider_name(""), None);
    }
}
