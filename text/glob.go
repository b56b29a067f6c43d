package text

import (
	"fmt"
	"path"
)

// CheckGlob returns an error unless glob is a pattern of package path.
func CheckGlob(glob string) error {
	if _, err := path.Match(glob, ""); err != nil {
		return fmt.Errorf("\"%s\" is not a glob: * stands for anything, ? for a character, [a-z] for one of a set", Line(glob))
	}
	return nil
}
