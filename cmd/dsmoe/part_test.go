package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestPart reads --part, --parts and the environments of arrays.
func TestPart(t *testing.T) {
	const slurm = "SLURM_ARRAY_TASK_"
	array := func(id, first, last, count, step string) []string {
		return []string{slurm + "ID=" + id, slurm + "MIN=" + first, slurm + "MAX=" + last, slurm + "COUNT=" + count,
			slurm + "STEP=" + step}
	}
	for _, c := range []struct {
		flags string
		env   []string
		want  part
		cause string // if it is refused
	}{
		{"", nil, part{}, ""},
		{"", array("3", "0", "7", "8", "1"), part{}, ""}, // not asked
		{"--part 1/1", nil, part{1, 1}, ""},
		{"--part 16/16", array("3", "0", "7", "8", "1"), part{16, 16}, ""},
		{"--part 0/4", nil, part{}, `invalid argument "0/4" for "--part" flag: not I/N with 1 ≤ I ≤ N`},
		{"--part 5/4", nil, part{}, "1 ≤ I ≤ N"},
		{"--part -1/4", nil, part{}, "1 ≤ I ≤ N"},
		{"--part 3", nil, part{}, "not I/N"},
		{"--part 1/2/3", nil, part{}, "not I/N"},
		{"--part 1/99999999999999999999", nil, part{}, "not I/N"},
		{"--part ", nil, part{}, "not I/N"},
		{"--part 1/4 --parts 4", nil, part{}, "--parts is the number of parts of --part auto"},
		{"--parts 4", nil, part{}, "--parts is the number of parts of --part auto"},
		{"--part auto --parts 0", nil, part{}, "at least 1"},
		{"--part auto", nil, part{}, "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set"},
		{"--part auto", array("0", "0", "7", "8", "1"), part{1, 8}, ""},
		{"--part auto", array("8", "1", "8", "8", "1"), part{8, 8}, ""},
		{"--part auto", array("30", "0", "30", "16", "2"), part{16, 16}, ""},
		{"--part auto", array("4", "0", "31", "16", "2"), part{3, 16}, ""}, // as --array=0-31:2 may be told
		{"--part auto", array("105", "101", "109", "5", "2"), part{3, 5}, ""},
		{"--part auto", []string{slurm + "ID=3", slurm + "MIN=2", slurm + "COUNT=4"}, part{2, 4}, ""},
		{"--part auto --parts 8", array("3", "0", "7", "8", "1"), part{4, 8}, ""},
		{"--part auto --parts 8", array("3", "3", "3", "1", "1"), part{}, "--parts 8, but Slurm's array has 1 tasks"},
		{"--part auto", array("3", "1", "7", "3", "1"), part{}, "not an array without gaps"}, // --array=1,3,7
		{"--part auto", array("2", "1", "5", "3", "1"), part{}, "not an array without gaps"}, // --array=1,2,5
		{"--part auto", array("3", "0", "30", "16", "2"), part{}, "not an array without gaps"},
		{"--part auto", array("3", "0", "7", "8", "0"), part{}, "not an array without gaps"},
		{"--part auto", array("9", "0", "7", "8", "1"), part{}, "not an array without gaps"},
		{"--part auto", array("1", "2", "7", "6", "1"), part{}, "not an array without gaps"},
		{"--part auto", []string{slurm + "ID=x", slurm + "COUNT=4"}, part{},
			`SLURM_ARRAY_TASK_ID="x", SLURM_ARRAY_TASK_MIN="": not whole numbers`},
		{"--part auto", []string{"JOB_COMPLETION_INDEX=0"}, part{}, "give --parts N, the Job's completions"},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=0"}, part{1, 4}, ""},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=3"}, part{4, 4}, ""},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=4"}, part{}, "--parts 4 has the indices 0-3"},
		{"--part auto --parts 4", []string{"JOB_COMPLETION_INDEX=-1"}, part{}, "not a whole number"},
		{"--part auto --parts 4", append(array("0", "0", "3", "4", "1"), "JOB_COMPLETION_INDEX=0"), part{}, "both set"},
	} {
		t.Run(strings.Join(append(c.env, c.flags), " "), func(t *testing.T) {
			for _, setting := range append(array("", "", "", "", ""), "JOB_COMPLETION_INDEX=") {
				t.Setenv(strings.TrimSuffix(setting, "="), "")
			}
			for _, setting := range c.env {
				name, word, _ := strings.Cut(setting, "=")
				t.Setenv(name, word)
			}
			var got part
			cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true}
			flags := addPart(cmd, "one of N parts")
			cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
				got, err = flags.read(cmd)
				return err
			}
			cmd.SetArgs(nil)
			if c.flags != "" {
				cmd.SetArgs(strings.Split(c.flags, " "))
			}
			err := cmd.Execute()
			if c.cause == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.cause)
			}
			require.Equal(t, c.want, got)
		})
	}
}
