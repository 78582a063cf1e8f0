//! An allocator for programs that run for a millisecond. It hands out pieces of one array, whose
//! pages the kernel provides on first use, without a system call. musl's allocator requests single
//! pages from the kernel, and returns them immediately.
#![expect(unsafe_code, reason = "an allocator hands out pointers")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};

/// The size of the array. Examining an image's RDMA libraries uses most of it, other starts a
/// quarter.
const BYTES: usize = 1024 * 1024;

/// The largest piece of the array. Larger allocations, and all allocations once the array is used
/// up, go to the system's allocator.
const MAX_PIECE_BYTES: usize = 64 * 1024;

/// A program that uses more than the first of these many bytes will use the array up to the second: it adds devices to
/// a container. One system call for all these pages costs less than a fault for each.
const POPULATED_BYTES: Range<usize> = 64 * 1024..384 * 1024;

/// Allocates from the start of the array to its end. Only the last piece can be freed or grow.
#[repr(C)]
pub struct BumpAllocator {
    /// The first field, so that it shares a page with the first pieces.
    used: AtomicUsize,
    array: UnsafeCell<[u8; BYTES]>,
}

// SAFETY: a byte of the array belongs to the caller whose exchange of `used` reserved it.
unsafe impl Sync for BumpAllocator {}

impl BumpAllocator {
    #[expect(clippy::new_without_default, reason = "a static needs a constant")]
    #[must_use]
    pub const fn new() -> Self {
        BumpAllocator { used: AtomicUsize::new(0), array: UnsafeCell::new([0; BYTES]) }
    }

    /// Returns the offset of a piece in the array. Returns `None` if the piece is outside of it.
    fn offset(&self, piece: *mut u8) -> Option<usize> {
        let offset = piece.addr().wrapping_sub(self.array.get().addr());
        (offset < BYTES).then_some(offset)
    }

    /// Moves the end of the last piece. Returns `false` if the piece is not the last one, or the
    /// array is too small.
    fn move_end(&self, from: usize, to: usize) -> bool {
        to <= BYTES
            && self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ignores failures: before Linux 5.14 each page is provided on first use.
    fn populate(&self) {
        let start = self
            .array
            .get()
            .map_addr(|start| (start + POPULATED_BYTES.start).next_multiple_of(4096));
        let bytes = POPULATED_BYTES.end - POPULATED_BYTES.start;
        // SAFETY: the pages lie within the array, and only become present: their contents do not change.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
    }

    fn allocate(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() > MAX_PIECE_BYTES {
            return None;
        }
        let start = self.array.get();
        loop {
            let used = self.used.load(Ordering::Relaxed);
            let next = (start.addr() + used).next_multiple_of(layout.align()) - start.addr();
            if next + layout.size() > BYTES {
                return None;
            }
            let end = next + layout.size();
            if self.move_end(used, end) {
                if used < POPULATED_BYTES.start && end >= POPULATED_BYTES.start {
                    self.populate();
                }
                // SAFETY: the piece lies within the array.
                return Some(unsafe { start.cast::<u8>().add(next) });
            }
        }
    }
}

// SAFETY: a piece is aligned and belongs to one caller until it is freed. All others come from the system's allocator.
unsafe impl GlobalAlloc for BumpAllocator {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.allocate(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    #[inline(never)]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match self.offset(piece) {
            Some(start) => {
                self.move_end(start + layout.size(), start);
            }
            // SAFETY: a piece outside of the array came from the system's allocator.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = self.offset(piece) else {
            // SAFETY: as above.
            return unsafe { System.realloc(piece, layout, size) };
        };
        if size <= MAX_PIECE_BYTES && self.move_end(start + layout.size(), start + size)
            || size <= layout.size()
        {
            return piece;
        }
        // SAFETY: the size is not zero, and the caller promises that it fits the alignment.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(piece, layout.size());
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static MEMORY: BumpAllocator = BumpAllocator::new();
    static SHARED: BumpAllocator = BumpAllocator::new();

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    fn take(memory: &BumpAllocator, layout: Layout) -> *mut u8 {
        // SAFETY: no size here is zero.
        let piece = unsafe { memory.alloc(layout) };
        assert!(!piece.is_null() && piece.addr().is_multiple_of(layout.align()));
        piece
    }

    #[test]
    fn only_the_last_piece_grows_where_it_is() {
        let (first, small) = (take(&MEMORY, layout(3, 1)), layout(8, 8));
        let last = take(&MEMORY, small);
        assert_eq!(last.addr() - first.addr(), 8);
        // SAFETY: the pieces are of this allocator and of these sizes.
        unsafe {
            first.write_bytes(7, 3);
            let grown = MEMORY.realloc(last, small, 100);
            assert_eq!(grown, last);
            let moved = MEMORY.realloc(first, layout(3, 1), 20);
            assert_eq!(moved.addr(), last.addr() + 100);
            assert_eq!(std::slice::from_raw_parts(moved, 3), [7; 3]);
            assert_eq!(MEMORY.realloc(moved, layout(20, 1), 2), moved);
            MEMORY.dealloc(moved, layout(2, 1));
            assert_eq!(take(&MEMORY, layout(5, 1)), moved);
            // A block that is large or no longer fits belongs to the system's allocator; it moves there and is freed there.
            for size in [MAX_PIECE_BYTES + 1, MAX_PIECE_BYTES * 2] {
                let large = take(&MEMORY, layout(size, 1));
                assert_eq!(MEMORY.offset(large), None);
                MEMORY.dealloc(large, layout(size, 1));
            }
            let large = MEMORY.realloc(moved, layout(5, 1), MAX_PIECE_BYTES + 1);
            assert_eq!(MEMORY.offset(large), None);
            assert_eq!(large.read(), moved.read());
            MEMORY.dealloc(large, layout(MAX_PIECE_BYTES + 1, 1));
        }
    }

    #[test]
    fn no_two_threads_have_the_same_piece_even_when_it_is_used_up() {
        let rounds = BYTES / 64;
        let fill = |mark: u8| {
            for _ in 0..rounds {
                let piece = take(&SHARED, layout(48, 16));
                // SAFETY: the piece is this thread's own.
                unsafe {
                    piece.write_bytes(mark, 48);
                    std::hint::spin_loop();
                    assert_eq!(std::slice::from_raw_parts(piece, 48), [mark; 48]);
                    if mark == 2 {
                        SHARED.dealloc(piece, layout(48, 16));
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for mark in 1..=3 {
                scope.spawn(move || fill(mark));
            }
        });
        let left = BYTES - SHARED.used.load(Ordering::Relaxed);
        assert!(left < 2 * 48, "{left} bytes are left");
    }
}
