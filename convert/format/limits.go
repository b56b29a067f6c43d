package format

import (
	"errors"
	"fmt"

	"dsmoe/text"
)

// The limits on the lists in a file or an index of any format. They are far above every
// model's; a hostile file would otherwise make its reader allocate gigabytes.
const (
	MaxTensors = 1 << 19 // tensors in one file or one index
	maxName    = 512     // bytes of a tensor's name
)

// CheckName refuses a tensor name that is empty, longer than maxName, or not printable UTF-8.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("name is empty")
	case len(name) > maxName:
		return fmt.Errorf("name has %d bytes, more than the limit of %d", len(name), maxName)
	case !text.Printable(name):
		return errors.New("name has characters that cannot be printed")
	}
	return nil
}
