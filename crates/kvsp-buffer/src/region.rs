//! Memory by raw pointers: the only unsafe code of this crate.
//!
//! Why not `Vec<u8>`: the kernel copies into a socket's receive buffer up to ten times slower where source and
//! destination differ by a few octets modulo a page, and large allocations of the C library start 16 octets
//! after a page. A `Vec` cannot ask for an alignment; a mapping of its own also goes back to the system whole.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::slice;

/// Octets from which a region is a mapping of its own rather than a piece of the heap.
pub(crate) const MAPPED_FROM_OCTETS: usize = 128 << 10;
/// Size and alignment of a huge page; regions of at least one are aligned to it.
const HUGE_PAGE_OCTETS: usize = 2 << 20;
/// Alignment of a region that is smaller than a page: a cache line.
const LINE_OCTETS: usize = 64;

/// What a region of at least `octets` occupies: whole lines below a page, whole pages from there on. `None`
/// where no address space has as much.
pub(crate) fn occupied(octets: usize) -> Option<usize> {
    let unit = if octets < page_octets() { LINE_OCTETS } else { page_octets() };
    let whole = octets.max(1).checked_next_multiple_of(unit)?;
    // What a Layout takes at most.
    isize::try_from(whole).ok().map(|_| whole)
}

/// Octets of a page of memory.
pub(crate) fn page_octets() -> usize {
    #[cfg(all(unix, not(miri)))]
    {
        static PAGE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        *PAGE.get_or_init(|| {
            // SAFETY: `sysconf` takes any name and touches no memory of ours.
            let octets = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            usize::try_from(octets).ok().filter(|octets| octets.is_power_of_two()).unwrap_or(4096)
        })
    }
    #[cfg(not(all(unix, not(miri))))]
    {
        4096
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// No memory at all.
    Nowhere,
    Heap,
    #[cfg(all(unix, not(miri)))]
    Mapping,
}

/// Memory that this value alone owns: initialised octets, freed on drop.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    /// As [`occupied`] gives it.
    octets: usize,
    origin: Origin,
}

// SAFETY: the memory belongs to this value alone and is reached only through `&self` and `&mut self`, so it may
// move to, and be read from, other threads like a `Box<[u8]>`.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives `&[u8]` only.
unsafe impl Sync for Region {}

impl Region {
    /// A region of exactly `octets`, a result of [`occupied`]; zeroed. `None` where the system has no more.
    pub(crate) fn new(octets: usize) -> Option<Self> {
        #[cfg(all(unix, not(miri)))]
        if octets >= MAPPED_FROM_OCTETS {
            return map(octets);
        }
        let layout = heap_layout(octets)?;
        // SAFETY: the layout's size is not zero: `occupied` gives at least one line.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, octets, origin: Origin::Heap })
    }

    /// Of no octets; holds nothing and frees nothing.
    pub(crate) const fn none() -> Self {
        Self { start: NonNull::dangling(), octets: 0, origin: Origin::Nowhere }
    }

    pub(crate) const fn octets(&self) -> usize {
        self.octets
    }

    /// Whether keeping it for the next buffer of its size saves a system call and its page faults.
    pub(crate) const fn is_mapping(&self) -> bool {
        !matches!(self.origin, Origin::Heap | Origin::Nowhere)
    }

    pub(crate) const fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` is valid for `octets` octets, which were zeroed when it was made and stay
        // initialised, for as long as `self` lives; nobody writes while it is borrowed. Without octets it is
        // dangling and aligned, as an empty slice may be.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.octets) }
    }

    pub(crate) const fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, and `&mut self` is the only way to the memory while it is borrowed.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.octets) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.origin {
            Origin::Nowhere => {}
            Origin::Heap => {
                if let Some(layout) = heap_layout(self.octets) {
                    // SAFETY: `start` came from `alloc_zeroed` with this same layout and is not used again.
                    unsafe { dealloc(self.start.as_ptr(), layout) }
                }
            }
            #[cfg(all(unix, not(miri)))]
            Origin::Mapping => unmap(self.start.as_ptr(), self.octets),
        }
    }
}

/// Depends on the size alone, so that freeing finds the layout of allocating.
fn heap_layout(octets: usize) -> Option<Layout> {
    let align = if octets < page_octets() { LINE_OCTETS } else { page_octets() };
    Layout::from_size_align(octets, align).ok()
}

/// An anonymous mapping; from a huge page on it is aligned to one, and the system is asked for huge pages.
#[cfg(all(unix, not(miri)))]
fn map(octets: usize) -> Option<Region> {
    let surplus = if octets >= HUGE_PAGE_OCTETS { HUGE_PAGE_OCTETS - page_octets() } else { 0 };
    let mapped = octets.checked_add(surplus)?;
    // SAFETY: an anonymous mapping at an address that the system chooses overlaps nothing of ours.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    let base = NonNull::new(address.cast::<u8>())?;
    if surplus == 0 {
        return Some(Region { start: base, octets, origin: Origin::Mapping });
    }
    let lead = base.align_offset(HUGE_PAGE_OCTETS).min(surplus);
    let tail = surplus - lead;
    // SAFETY: `lead + octets + tail` is the length of the mapping, so `start` and the end lie within it.
    let (start, end) = unsafe { (base.add(lead), base.add(lead + octets)) };
    if lead > 0 {
        unmap(base.as_ptr(), lead);
    }
    if tail > 0 {
        unmap(end.as_ptr(), tail);
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the range is a mapping of ours; the advice changes no contents. Refused advice costs speed alone.
    unsafe {
        libc::madvise(start.as_ptr().cast(), octets, libc::MADV_HUGEPAGE);
    }
    Some(Region { start, octets, origin: Origin::Mapping })
}

/// `start` and `octets` are page-aligned and within a mapping of ours of which nothing there is used again.
#[cfg(all(unix, not(miri)))]
fn unmap(start: *mut u8, octets: usize) {
    // SAFETY: the callers own the range, as said above. It can fail only where splitting a mapping exceeds the
    // system's number of mappings; then the range stays mapped, untouched and unused.
    unsafe {
        libc::munmap(start.cast(), octets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_zeroed_and_its_own() {
        let page = page_octets();
        for octets in [1, 63, 64, page - 1, page, page + 1, MAPPED_FROM_OCTETS - 1, MAPPED_FROM_OCTETS] {
            let mut region = Region::new(occupied(octets).unwrap()).unwrap();
            assert!(region.octets() >= octets && region.octets() < octets + page);
            let align = if octets < page { LINE_OCTETS } else { page };
            assert_eq!(region.as_slice().as_ptr().align_offset(align), 0, "{octets}");
            assert!(region.as_slice().iter().all(|octet| *octet == 0));
            region.as_mut_slice().fill(7);
            assert!(region.as_slice().iter().all(|octet| *octet == 7));
        }
    }

    #[cfg(all(unix, not(miri)))]
    #[test]
    fn a_large_region_is_a_mapping_aligned_to_a_huge_page() {
        for octets in [HUGE_PAGE_OCTETS, HUGE_PAGE_OCTETS + 532, 5 * HUGE_PAGE_OCTETS - 1] {
            let mut region = Region::new(occupied(octets).unwrap()).unwrap();
            assert!(region.is_mapping());
            assert_eq!(region.as_slice().as_ptr().align_offset(HUGE_PAGE_OCTETS), 0);
            // Both ends are there: the surplus was cut off outside of the region.
            let last = region.octets() - 1;
            region.as_mut_slice()[0] = 1;
            region.as_mut_slice()[last] = 2;
            assert_eq!((region.as_slice()[0], region.as_slice()[last]), (1, 2));
        }
        assert!(!Region::new(occupied(MAPPED_FROM_OCTETS - page_octets()).unwrap()).unwrap().is_mapping());
    }

    #[test]
    fn what_no_address_space_has_is_refused() {
        assert_eq!(occupied(usize::MAX), None);
        assert_eq!(occupied(isize::MAX as usize), None);
        #[cfg(not(miri))]
        assert!(Region::new(occupied(isize::MAX as usize - 2 * page_octets()).unwrap()).is_none());
    }
}
