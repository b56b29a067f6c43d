package remote

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFirstTries: before any server answered, fewer tries are made.
func TestFirstTries(t *testing.T) {
	c := NewClient()
	broken := &failure{cause: "cannot be reached"} // to be repeated at once
	require.NoError(t, c.pause(broken, firstTries-1))
	require.ErrorContains(t, c.pause(broken, firstTries), "cannot be reached, after 5 tries")
	c.answered.Store(true)
	require.NoError(t, c.pause(broken, firstTries))
	require.ErrorContains(t, c.pause(broken, maxTries), "after 12 tries")
}

// TestWithoutSecrets: messages of others name URLs without users and queries.
func TestWithoutSecrets(t *testing.T) {
	require.Equal(t, `invalid proxy "http://host:zz": at https://host/a`,
		withoutSecrets(`invalid proxy "http://me:word@host:zz": at https://host/a?signature=1`))
}
