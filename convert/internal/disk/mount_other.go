//go:build !linux

package disk

// IsMountPoint is not known of any directory here.
func IsMountPoint(string) bool { return false }
