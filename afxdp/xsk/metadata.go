//go:build linux

package xsk

// TxMetadataLen is the size of [TxMetadata] in bytes.
const TxMetadataLen = 24
