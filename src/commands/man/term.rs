//! The entries of lists in manual pages.

use clap_mangen::roff::{Inline, Roff, roman};

pub(super) fn write(roff: &mut Roff, term: Inline, said: &str) {
    roff.control("TP", []).text([term]).text([roman(said)]);
}
