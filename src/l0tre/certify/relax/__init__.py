"""Linear relaxation: intervals, CROWN, concretisation over search nodes."""
