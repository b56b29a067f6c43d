//go:build !linux

package disk

import "errors"

// Exchange is not supported on this system.
func (d *Disk) Exchange(_, b string) error {
	return d.call("exchange", b, func() error { return errors.ErrUnsupported })
}
