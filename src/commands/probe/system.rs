//! Probes that need unsafe calls: huge and locked memory, and vfio nodes.

#![expect(unsafe_code, reason = "rustix has mmap(2) and ioctl(2) as unsafe")]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Updater};
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, mmap_anonymous, munmap};

/// include/uapi/linux/vfio.h: `_IO(';', 100)` and what follows.
const GET_API_VERSION: Opcode = 0x3b64;
const SET_IOMMU: Opcode = 0x3b66;
const GROUP_GET_STATUS: Opcode = 0x3b67;
const GROUP_SET_CONTAINER: Opcode = 0x3b68;
const GROUP_GET_DEVICE_FD: Opcode = 0x3b6a;
const VIABLE: u32 = 1;
/// `_IO(';', 118)` and 119, since Linux 6.6; and include/uapi/linux/iommufd.h: `_IO(';', 0x81)`.
const BIND_IOMMUFD: Opcode = 0x3b76;
const ATTACH_IOMMUFD_PT: Opcode = 0x3b77;
const IOAS_ALLOC: Opcode = 0x3b81;

/// Maps a page of a hugetlbfs file, writes its first byte, and reads it back.
pub(super) fn touch_page(file: &File, bytes: usize) -> Result<u8, Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, so that nothing else is mapped there. The range is used only here, within
    // its length, and unmapped before the end.
    unsafe {
        let page = mmap(ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0)?;
        let first = page.cast::<u8>();
        first.write_volatile(42);
        let read = first.read_volatile();
        munmap(page, bytes)?;
        Ok(read)
    }
}

/// Maps that much memory, and locks it until it is unmapped at the end.
pub(super) fn lock(bytes: usize) -> Result<(), Errno> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: as in `touch_page`, and nothing is read or written there.
    unsafe {
        let memory = mmap_anonymous(ptr::null_mut(), bytes, prot, MapFlags::PRIVATE)?;
        let locked = mlock(memory, bytes);
        munmap(memory, bytes)?;
        locked
    }
}

pub(super) fn api_version(container: &File) -> Result<i32, Errno> {
    with_number::<GET_API_VERSION>(container, 0)
}

/// Whether the kernel would give the group away: no other driver has a function of it.
pub(super) fn is_viable(group: &File) -> Result<bool, Errno> {
    // struct vfio_group_status: its size, and flags.
    let [_, flags] = with_words::<GROUP_GET_STATUS, 2>(group, [8, 0])?;
    Ok(flags & VIABLE != 0)
}

pub(super) fn set_container(group: &File, container: &File) -> Result<(), Errno> {
    let mut descriptor = container.as_fd().as_raw_fd();
    // SAFETY: the kernel reads an int at the address, which `descriptor` is.
    unsafe {
        let call = Updater::<GROUP_SET_CONTAINER, _>::new(&mut descriptor);
        ioctl::ioctl(group, call)
    }
}

/// `kind`: `VFIO_TYPE1v2_IOMMU` and its like.
pub(super) fn set_iommu(container: &File, kind: usize) -> Result<(), Errno> {
    with_number::<SET_IOMMU>(container, kind).map(drop)
}

/// A descriptor of a function, which is closed again.
pub(super) fn open_device(group: &File, address: &CStr) -> Result<(), Errno> {
    // SAFETY: the kernel reads a string at the address up to its NUL, and the string lives through the call.
    let descriptor = with_number::<GROUP_GET_DEVICE_FD>(group, address.as_ptr() as usize)?;
    // SAFETY: the kernel made this descriptor for us just now, and nothing else has it.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor) });
    Ok(())
}

/// Gives a function to an iommufd, by its own node.
pub(super) fn bind(device: &File, iommufd: &File) -> Result<(), Errno> {
    // struct vfio_device_bind_iommufd: its size, flags, the iommufd, and the number that the kernel answers.
    let descriptor = iommufd.as_fd().as_raw_fd().cast_unsigned();
    with_words::<BIND_IOMMUFD, 4>(device, [16, 0, descriptor, 0]).map(drop)
}

/// The number of a new address space.
pub(super) fn allocate_space(iommufd: &File) -> Result<u32, Errno> {
    // struct iommu_ioas_alloc: its size, flags, and the number that the kernel answers.
    let [_, _, space] = with_words::<IOAS_ALLOC, 3>(iommufd, [12, 0, 0])?;
    Ok(space)
}

pub(super) fn attach(device: &File, space: u32) -> Result<(), Errno> {
    // struct vfio_device_attach_iommufd_pt: its size, flags, and the number of the space or page table.
    with_words::<ATTACH_IOMMUFD_PT, 3>(device, [12, 0, space]).map(drop)
}

/// A call whose argument is a struct of u32s that begins with its size, as those of the opcodes above are.
fn with_words<const OPCODE: Opcode, const WORDS: usize>(
    file: &File,
    mut words: [u32; WORDS],
) -> Result<[u32; WORDS], Errno> {
    // SAFETY: the kernel reads and writes no more bytes at the address than the first word says, which is the size of
    // `words`; any bits are u32s.
    unsafe {
        let call = Updater::<OPCODE, _>::new(&mut words);
        ioctl::ioctl(file, call)?;
    }
    Ok(words)
}

/// A call whose argument is no pointer to memory that the kernel writes, and whose result is a number.
fn with_number<const OPCODE: Opcode>(file: &File, argument: usize) -> Result<i32, Errno> {
    struct WithNumber<const OPCODE: Opcode>(usize);
    // SAFETY: no memory is written, and the result is a number for each of the opcodes above.
    unsafe impl<const OPCODE: Opcode> ioctl::Ioctl for WithNumber<OPCODE> {
        type Output = i32;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> Opcode {
            OPCODE
        }
        fn as_ptr(&mut self) -> *mut std::ffi::c_void {
            ptr::with_exposed_provenance_mut(self.0)
        }
        unsafe fn output_from_ptr(
            result: ioctl::IoctlOutput,
            _: *mut std::ffi::c_void,
        ) -> rustix::io::Result<i32> {
            Ok(result)
        }
    }
    // SAFETY: as above; the callers say what the argument is.
    unsafe { ioctl::ioctl(file, WithNumber::<OPCODE>(argument)) }
}
