package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/model"
)

// versionDocuments is the JSON document of dsmoe version.
var versionDocuments = cli.Documents{cli.DocumentOf[*build]("dsmoe.version/1")}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Say which build this is, and which CPU kernels it uses",
		Long: `Prints the module's version, the commit that it was built from, the version of
Go, and the kernels for this processor: the first is the one in use. The results
of all are the same to the bit. GODEBUG=cpu.avx512f=off hides a feature of the
processor.`,
		Example: `  dsmoe version
  dsmoe version --json`,
		Args:        cli.Expect(),
		Annotations: cli.Exits("done", ""),
	}
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return versionDocuments.Print(cmd, describeBuild())
	}
	return cmd
}

// build says which build this is. It is JSON as it stands.
type build struct {
	Version  string   `json:"version"`          // of the module; "(devel)" or "(unknown)" if the build has none
	Commit   string   `json:"commit,omitempty"` // that it was built from; absent if the build does not say
	Modified bool     `json:"modified"`         // the sources differed from the commit
	Go       string   `json:"go"`               // version of the compiler
	OS       string   `json:"os"`               // GOOS
	Arch     string   `json:"arch"`             // GOARCH
	Kernels  []string `json:"kernels"`          // that this processor runs; the first is in use
}

func describeBuild() *build {
	b := &build{Version: "(unknown)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Kernels: model.Kernels()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String says it in a line: the version, which may name the commit, and the compiler.
func (b *build) String() string {
	line := b.Version
	if b.Commit != "" {
		line += ", revision " + b.Commit
	}
	return fmt.Sprintf("%s, %s %s/%s", line, b.Go, b.OS, b.Arch)
}

// WriteText writes that line, and the kernels.
func (b *build) WriteText(w io.Writer) error {
	state := ""
	if b.Modified {
		state = ", with changes"
	}
	_, err := fmt.Fprintf(w, "dsmoe %s%s\nkernels %s in use; this processor runs %s\n", b, state, b.Kernels[0],
		strings.Join(b.Kernels, ", "))
	return err
}

// version says which build this is, in a line.
func version() string { return describeBuild().String() }
