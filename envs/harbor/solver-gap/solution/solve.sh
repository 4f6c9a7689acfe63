#!/bin/bash
set -e
sed -i 's/^CPXPARAM_MIP_Tolerances_MIPGap .*/CPXPARAM_MIP_Tolerances_MIPGap 0.001/' /home/user/optim/cplex.prm
