// Package hostmem says how much memory this process may still take without
// swapping and without being killed for it.
//
// That is the smaller of what the system has available and what the control
// groups (version 1 or 2) that the process is in leave of their limits, its
// ancestors' included: in a container /proc/meminfo shows the whole machine.
// Page cache that can be dropped counts as available on both sides.
//
// The files are read anew each time; nothing is cached. A limit that cannot be
// read is taken for no limit: only /proc/meminfo has to be there.
package hostmem
