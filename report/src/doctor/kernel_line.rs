//! How a word comes onto the kernel's command line: by rpm-ostree or grubby, as Red Hat's systems have them, by GRUB's
//! settings, or by hand where another boot loader starts it.

use super::check::{Finding, Remedy};
use super::context::{CheckContext, HostResult};
use super::distribution::Distribution;

/// Edits the entries of the boot loader, where Red Hat's are.
const GRUBBY: &str = "/usr/sbin/grubby";
const GRUB: &str = "/etc/default/grub";
pub(super) const CMDLINE_PATH: &str = "/proc/cmdline";

fn is_ostree(context: &CheckContext<'_>) -> HostResult<bool> {
    Ok(Distribution::detect(context.host)? == Distribution::RpmOstree)
}

pub(super) fn write(context: &CheckContext<'_>, words: &str) -> HostResult<Remedy> {
    Ok(if is_ostree(context)? {
        let words: String =
            words.split_ascii_whitespace().map(|word| format!(" --append=\"{word}\"")).collect();
        Remedy::run(format!("rpm-ostree kargs{words}"))
    } else if context.is_file(GRUBBY)? {
        Remedy::run(format!("grubby --update-kernel=ALL --args=\"{words}\""))
    } else if is_in_grub(context, words)? {
        Remedy::run(Distribution::detect(context.host)?.update_grub())
    } else if context.is_file(GRUB)? {
        // Added, and not written, since it keeps the words of the line before it.
        let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {words}\"");
        Remedy::run(format!("echo '{line}' >> {GRUB}"))
    } else {
        // The quotes are for GRUB, which reads entries that are edited by hand as a script too; masked, they are for a shell
        // before it. The kernel removes only those that a value begins with (next_arg in lib/cmdline.c).
        let is_script = words.contains('"')
            && (context.exists("/boot/grub2")? || context.exists("/boot/grub")?);
        let not_read: &[char] = if is_script { &['\\'] } else { &['\\', '"'] };
        Remedy::KernelLine { kernel_line: words.replace(not_read, ""), replaces: None }
    })
}

/// Returns whether GRUB's settings already contain these words, so that only its entries have to be made again.
fn is_in_grub(context: &CheckContext<'_>, words: &str) -> HostResult<bool> {
    let text = context.host.text(GRUB.as_ref())?.unwrap_or_default();
    let values = text
        .lines()
        .filter(|line| line.starts_with("GRUB_CMDLINE_LINUX"))
        .filter_map(|line| Some(line.split_once('=')?.1));
    let trim = |word: &'_ str| word.trim_matches(['"', '\'']).to_owned();
    let present: Vec<String> = values.flat_map(str::split_ascii_whitespace).map(trim).collect();
    Ok(words.split_ascii_whitespace().all(|word| present.contains(&trim(word))))
}

/// The first word of the kernel's line that begins so. Words after `--` are for init, and words with other characters
/// than those of parameters cannot be named in a command.
pub(super) fn find_word(context: &CheckContext<'_>, start: &str) -> HostResult<Option<String>> {
    let line = context.attribute(CMDLINE_PATH)?.unwrap_or_default();
    let mut words = line.split_ascii_whitespace().take_while(|word| *word != "--");
    let word = words.find(|word| {
        word.starts_with(start)
            && word.chars().all(|c: char| c.is_ascii_alphanumeric() || "_=,:/.-".contains(c))
    });
    Ok(word.map(str::to_owned))
}

/// The first step, where a word of the line is replaced by another. Both are plain to a shell and to sed.
pub(super) fn replace(context: &CheckContext<'_>, old: &str, new: &str) -> HostResult<Remedy> {
    Ok(if is_ostree(context)? {
        Remedy::run(format!("rpm-ostree kargs --delete={old} --append={new}"))
    } else if context.is_file(GRUBBY)? {
        Remedy::run(format!("grubby --update-kernel=ALL --remove-args={old} --args={new}"))
    } else if is_in_grub(context, new)? && !is_in_grub(context, old)? {
        Remedy::run(Distribution::detect(context.host)?.update_grub())
    } else if context.is_file(GRUB)? {
        Remedy::run(format!("sed -i 's|{old}|{new}|' {GRUB}"))
    } else {
        Remedy::KernelLine { kernel_line: new.to_owned(), replaces: Some(old.to_owned()) }
    })
}

/// A finding with steps that work at once, and those that keep it so after the next boot.
pub(super) fn with_kernel_line(
    context: &CheckContext<'_>,
    finding: Finding,
    words: &str,
) -> HostResult<Finding> {
    let finding = finding.with_remedy(write(context, words)?);
    with_bootloader_update(context, finding)
}

fn with_bootloader_update(context: &CheckContext<'_>, finding: Finding) -> HostResult<Finding> {
    let distribution = Distribution::detect(context.host)?;
    let has_tool = distribution == Distribution::RpmOstree || context.is_file(GRUBBY)?;
    let update = Remedy::run(distribution.update_grub());
    let is_done = has_tool || !context.is_file(GRUB)? || finding.remedy.contains(&update);
    Ok(if is_done { finding } else { finding.with_remedy(update) })
}

/// A finding whose first step was [`write()`] or [`replace()`], with the steps that follow it.
pub(super) fn with_reboot(context: &CheckContext<'_>, finding: Finding) -> HostResult<Finding> {
    let finding = with_bootloader_update(context, finding)?;
    let reboot = Distribution::detect(context.host)?.reboot_command();
    Ok(finding.with_remedy(Remedy::run(reboot)))
}
