package main

// --merge: reports of parts, which earlier runs printed as JSON, read and joined into one.

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/report"
)

// addMerge adds --merge to dsmoe verify. With it the arguments are REPORTs, and all flags but those that say how to
// print, printing among them, are refused.
func addMerge(cmd *cobra.Command, printing ...string) *bool {
	merge := cmd.Flags().Bool("merge", false, "join the JSON of earlier runs: dsmoe ... --merge REPORT...")
	cli.InGroup(cmd.Flags(), cli.Parts, "merge")
	printing = append(printing, "merge", "json", cli.ColourFlag, cli.WideFlag)
	expected := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if !*merge {
			return expected(cmd, args)
		}
		var err error
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if !slices.Contains(printing, f.Name) {
				err = cli.Misuse(cmd, fmt.Sprintf("--%s does not go with --merge, which joins reports as they are", f.Name))
			}
		})
		if err == nil && len(args) == 0 {
			err = cli.Misuse(cmd, "want at least one REPORT, but 0 given")
		}
		return err
	}
	return merge
}

// mergeVerified joins the reports of verify in these files.
func mergeVerified(paths []string) (*verified, error) {
	all, err := cli.ReadReports(verifyDocuments, paths, func(v *verified) error {
		if c := &v.Checkpoint; v.Report == nil || c.Files == nil || c.Hashes == nil || c.Identity == nil || c.Samples == nil {
			return errors.New("members are null: it was changed")
		} else if v.Merged != nil {
			return errors.New("made by --merge; join the reports that it joined")
		}
		return verify.Unmergeable(v.Report)
	})
	if err != nil {
		return &verified{Version: version()}, err
	}
	var errs []error
	var reports []*report.Report
	m := *all[0]
	m.Duration = 0
	for i, v := range all {
		different := append(verify.Differences(all[0].Report, v.Report), m.Checkpoint.join(&v.Checkpoint)...)
		if v.Version != m.Version {
			different = append(different, fmt.Sprintf("dsmoe is %s, not %s", v.Version, m.Version))
		}
		for _, d := range different {
			errs = append(errs, fmt.Errorf("%s: not of one verification with %s: %s", text.Quote(paths[i]),
				text.Quote(paths[0]), d))
		}
		reports = append(reports, v.Report)
		m.Duration += v.Duration
		if at := text.Quote(v.Checkpoint.Path); !slices.Contains(m.paths, at) {
			m.paths = append(m.paths, at)
		}
		m.Merged = append(m.Merged, mergedReport{paths[i], v.Scope.Part, v.Verdict, v.Duration})
	}
	if errs != nil {
		return &m, errors.Join(errs...)
	}
	if m.Report, m.Disputed, err = verify.Merge(reports); m.Checkpoint.Mapped > 0 {
		m.Checkpoint.Mapped = m.Scope.Bytes
	}
	return &m, err
}
