// Package pickle reads plain data from Python's pickle files without running any
// of them.
//
// # The story
//
// A pickle is a program for a small stack machine, and most of what makes it
// dangerous are the opcodes that look up and call Python functions. [Read] knows the
// opcodes of protocols 2 to 5 that build None, booleans, numbers, strings, bytes,
// lists, tuples, sets and dictionaries, and refuses a file at the first of any other:
// there is nothing in it that could call anything. That is enough for what
// torch.cuda.memory._dump_snapshot writes.
//
// # Invariants
//
//   - Memory is charged before it is taken, in proportion to what was read; the
//     limit is the caller's. A short file cannot make a large object.
//   - Every stack, mark and memo access is checked; a malformed file is an *Error
//     with its offset, never a panic.
//
// # Caveats
//
// Lists and dictionaries can contain each other or themselves, as in Python: who
// walks over them must bound the walk. Of a dictionary's equal keys the last wins
// in [Dict.Get], and both are kept. Protocols 0 and 1 are refused.
package pickle
