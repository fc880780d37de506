// Package match pairs messages with receives by source and tag. It is data
// structures only: no locks, no I/O, and no allocation once its tables have
// grown to what a program needs.
//
// The rules are those of every message-passing interface: a message goes to
// the receive that was posted first among those that match, a receive takes the
// message that arrived first among those that match. So two messages from one source
// that match the same receives are received in the order in which they came.
//
// A receive names one source or any, and a tag with a mask of the bits that count. Posted receives lie in one hash
// table for each combination of mask and any source (a class), so that the cost of an arrival grows with the number of
// classes in use, usually one or two, and not with that of receives. Programs that use more than a handful of masks at
// a time pay a linear search for the ones beyond. Unexpected messages are in a hash table by source and tag and, in
// the order of arrival, in an array that receives with wildcards search.
package match
