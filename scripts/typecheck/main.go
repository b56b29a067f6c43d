// Typecheck checks the types of all packages below the current directory, without tests, as other systems would compile
// them. It reads sources alone: that takes seconds, and a build would compile the standard library first. Each argument
// is an operating system and an architecture, such as windows/amd64.
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	failed := false
	for _, system := range os.Args[1:] {
		goos, goarch, _ := strings.Cut(system, "/")
		all, err := packages.Load(&packages.Config{
			Mode: packages.LoadAllSyntax,
			Env:  append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch),
		}, "./...")
		if err != nil || packages.PrintErrors(all) > 0 || len(all) == 0 {
			fmt.Fprintln(os.Stderr, system, "fails:", err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}
