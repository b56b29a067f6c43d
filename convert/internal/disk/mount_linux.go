package disk

import "golang.org/x/sys/unix"

// IsMountPoint reports whether the directory at path is the root of a mounted file system,
// which can neither be renamed nor replaced.
func IsMountPoint(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
